"""Serve an exported bundle by the protocol of OpenAI's API: `wiola-serve BUNDLE`.

Needs the extra `server` of wiola-runtime, which itself knows nothing of this package.
"""
