"""From files and folders to documents, and from documents to passages that are slices of them.

``walk.py`` lists the files of folders, ``convert.py`` reads one file as text, ``passages.py`` cuts a text.
"""
