"""Scripts: what each processor of a group executes, built from the schedule of a minibatch."""
