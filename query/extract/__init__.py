"""From the bytes of one file to the spans that may be quoted. Pure: no file is opened here."""
