"""Plant faults in a copy of the tree, one at a time, and see whether a test catches each.

`faults.toml` has the faults, by the rule that each breaks: the tests that state the rule, and the text that it changes.
"""
