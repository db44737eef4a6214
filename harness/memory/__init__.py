"""How much of the KV memory that a request holds is KV, by the way in which it is reserved."""
