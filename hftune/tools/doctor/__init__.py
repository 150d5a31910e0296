"""What this machine has for a run, and what is wrong with it: asked before anything is trained, changed nowhere."""
