"""Draw figures of results, as a paper prints them: axes with units, medians with quartiles.

They read in grey: bars differ by hatches, lines by markers and strokes. Drawing needs matplotlib
(extra `plot`), which is imported when a figure is drawn and not before.
"""
