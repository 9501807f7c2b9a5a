"""The parts of ``compare_blk.py``: cells, servers, clients, CPU clocks and the tables."""
