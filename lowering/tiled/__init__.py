"""Runs a plan with torch operations, tile by tile."""
