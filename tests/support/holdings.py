"""What a process holds: source text that measuring programs begin with."""

MEASURE = """
import gc, os, sys

def memory():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def files():
    return len(os.listdir("/proc/self/fd"))
"""
