"""Hours of traffic in virtual time: the rig's scheduler over a cost model instead of a device."""
