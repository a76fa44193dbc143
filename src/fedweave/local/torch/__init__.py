"""Local training in PyTorch."""

import warnings

# Models are handed to trainers as arrays that cannot be written to, and trainers only read them.
warnings.filterwarnings("ignore", "The given NumPy array is not writable")
