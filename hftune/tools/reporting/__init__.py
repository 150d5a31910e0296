"""What a run left behind, as numbers, curves and a page to read. Reads files only; knows no trainer."""
