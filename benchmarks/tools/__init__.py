"""Function calling on a public test: is every call valid, and how many are the right ones.

- `dataset`: fetches the package that carries the test, and turns its questions into requests.
- `scoring`: whether calls are what the test expects.
- `__main__`: asks a server through the official client, and writes the result.
"""
