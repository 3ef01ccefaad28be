"""From the store to figures, tables and a PDF; nothing here trains."""
