"""Adapters to Microsoft's SDKs: the only package that uses their private parts."""
