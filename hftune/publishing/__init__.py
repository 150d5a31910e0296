"""The one way a result reaches the disk: written alongside its target, locked, flushed, put in place by a rename.

What was there is removed only where it is a finished result that hftune wrote, where overwriting was asked for, and
after the new one is durable.
"""
