"""Logs as people have them: each form is one small file that makes exchanges of records."""
