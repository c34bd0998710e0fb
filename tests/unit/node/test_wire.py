"""Who is at the other end of a socket."""

from __future__ import annotations

import os
import socket

from node.wire import peer_of


def test_the_kernel_names_the_peer(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        calling.connect(str(tmp_path / "s"))
        served, _ = listening.accept()
        with served:
            assert peer_of(served) == (os.getuid(), os.getpid())
            assert peer_of(calling) == (os.getuid(), os.getpid())
