"""A link as a QR code in half blocks, two rows of modules a line, at most 80 columns wide."""

from __future__ import annotations

COLUMNS_MAX = 80
QUIET = 4
"""Light modules around the code, as readers want them."""
_BLOCKS = {(False, False): "\u2588", (False, True): "\u2580", (True, False): "\u2584", (True, True): " "}
"""Upper and lower module to a character; a light module is drawn, a dark one is left."""


def draw_link(link: str, *, coloured: bool) -> list[str] | None:
    """Draw a link with the strongest error correction that fits.

    Args:
        link: At most 1024 characters.
        coloured: Whether the lines set white on black themselves.

    Returns:
        Lines, or None where no form is narrow enough.
    """
    import segno

    for level in ("q", "m", "l"):
        code = segno.make(link, error=level, micro=False, boost_error=False)
        if code.symbol_size(border=QUIET)[0] <= COLUMNS_MAX:
            break
    else:
        return None
    rows = [[bool(module) for module in row] for row in code.matrix_iter(border=QUIET)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    before, after = ("\x1b[97;40m", "\x1b[0m") if coloured else ("", "")
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [before + "".join(_BLOCKS[pair] for pair in zip(upper, lower, strict=True)) + after for upper, lower in pairs]
