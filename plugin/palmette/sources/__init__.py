"""Reads files and folders as documents, and cuts documents into passages that are slices of them.

``walk.py`` lists the files of folders, ``convert.py`` reads one file as text, ``passages.py`` cuts a text.
"""
