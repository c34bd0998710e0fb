"""Who holds a port."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from node.portholder import port_holder, port_taken

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the sockets of a process as files")


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_process_that_listens_is_named(family, host):
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.bind((host, 0))
        listening.listen()
        port = listening.getsockname()[1]
        holder = port_holder(port)
        assert holder is not None
        assert holder.pid == os.getpid()
        error = port_taken(host, port)
        assert f"pid {os.getpid()}" in error.message
        assert str(port) in error.message
    assert port_holder(port) is None
    assert "another program" in port_taken("", port).message


def test_nothing_is_known_without_a_process_file_system(tmp_path):
    assert port_holder(1, proc=str(tmp_path)) is None
