"""Run folders to tables, figures and one page.

collect → statistics → curves, scores → tables, figures → page → write
"""
