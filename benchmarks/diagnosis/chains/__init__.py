"""Causes that have a cause: are the chains right?"""
