"""The forward run held against another implementation."""
