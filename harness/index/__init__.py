"""The prefix index as a subject: the tree by itself, token values in, token values out."""
