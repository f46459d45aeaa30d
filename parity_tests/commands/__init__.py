"""One file for each word of the command `attn-parity`: its function `main` takes the options.

A new file here is a new word; `parity_tests.commands.app` finds it. What a command needs is imported inside of `main`,
so that the others start fast.
"""
