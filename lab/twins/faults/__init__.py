"""What goes wrong in simulated runs, by what it acts on."""
