"""What keeps a student's function from harming its own process: time, output, changes of the library."""
