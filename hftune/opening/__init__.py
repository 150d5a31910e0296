"""Files that somebody else may have made: opened with limits, checked before they are believed, one message a fault."""
