"""When requests are sent: arrival processes and the plan of a run. Pure arithmetic, no clock and no I/O."""
