"""What is said about code that cannot be judged by its numbers."""

FAULTS = {
    "signature": "The exercise calls your function by the names of its arguments, and they do not fit: {message}. Copy "
    "the first lines of the stub, and leave them as they are.",
    "endless": "Your function did not come to an end and was stopped. Is there a loop whose condition never changes?",
    "hang": "Your function did not come to an end, and could not be stopped: it waits inside a call such as sleep, or "
    "works on something huge. Restart the kernel before you go on.",
    "flood": "Your function printed without end and was stopped. Take the print out, or print a shape instead.",
    "exit": "Your function ends the program (exit, quit, sys.exit or an interrupt of its own). Return a value instead.",
    "input": "Your function waits for somebody to type something (input). All that it needs is in its arguments.",
    "patched": "Your code replaces parts of torch, of Python or of this package: {patched}. They are back in place, as "
    "a check against changed parts would mean nothing. Choose another name for what is yours.",
    "device": "All numbers are right. On a GPU this would fail, though: {message}. Make new tensors on the device of "
    "the arguments, as x.new_zeros(...), torch.zeros_like(x) or device=x.device do.",
}
