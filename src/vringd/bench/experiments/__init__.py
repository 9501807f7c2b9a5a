"""Published experiments on scaling virtual storage, run on the machine at hand.

`published` has the figures as they were printed; an experiment says which cells to measure and
how; `running` measures them, and `text` and `html` show both side by side.
"""
