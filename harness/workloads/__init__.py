"""Generated traffic: exact token ids, and hits that are known beforehand."""
