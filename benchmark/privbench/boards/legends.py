"""What boards say below their tables."""

NUMBERS = """\
Numbers are means over seeds; brackets hold 95 % intervals (Student t over seeds). One seed has no
interval: that of its samples says nothing about other trainings (privbench show has it). Only the
test accuracy of one seed has the binomial interval of its test rows, in braces. Rows with fewer
than 5 seeds are **drafts**. **minus none** is the difference to the same cell without a defense,
**minus null** that to the null victim, both paired by seed. † marks differences of the attack's
main number to none that are not 0 after Holm's correction for all of them in the table (5 %).
Fewer than 3 seeds are not tested, nor differences that are the same on every seed: these have no
spread to judge by.
**null AUC** is the same attack on a victim trained on none of these samples: it must stay around
0.5. **blind AUC** is a classifier on raw inputs that never queries the victim. A failed attack
proves nothing. Rows marked ° are outside what the defense claims to protect. Training is compared
at an equal budget of **encoder updates**: a schedule that alternates by epoch runs more epochs to
reach it.
"""

FLAGS = """\
Rows marked ‡ cannot be trusted and are never ranked:
"""

DECIDES = """\
A balanced accuracy marked ◊ is not comparable with others: the attack decides at a threshold of its
own (a fixed FPR, the mean training loss), not where balanced accuracy is best on shadows.
"""

CONTROLS = """\
A positive control is the same victim with a planted leak that every attack of its access must find:
its main number must beat guessing in every seed, beyond its own interval. Attacks marked ¶ did not
find it: their other numbers say nothing about the defenses. Controls are never ranked.
"""

CANARIES = """\
**canaries'** columns pool the scores of all shadows, each in the victim's place and judged by those
of other rounds (leave-one-out, as in Aerni, Zhang, Tramèr, CCS 2024).
"""
