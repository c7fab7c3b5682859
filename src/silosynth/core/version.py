"""The version, for everything that must not import the public face to know it."""

VERSION = "0.1.0"
