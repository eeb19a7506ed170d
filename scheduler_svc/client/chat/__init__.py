"""The work of `baton chat`: the messages so far, how an answer is shown, and what is typed on a terminal."""
