"""Passes over the IR: each is a function from one program to another."""
