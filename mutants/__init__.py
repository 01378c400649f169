"""Mutation testing: small bugs put into the package one at a time, and the tests that notice them."""
