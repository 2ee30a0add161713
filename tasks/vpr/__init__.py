"""Visual place recognition: where was this picture taken, told by the pictures of known places that resemble it."""
