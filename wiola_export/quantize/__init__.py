"""Numbers only: how a matrix of floats is stored in few bits. Graphs are not known here."""
