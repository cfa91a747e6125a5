"""A trained model, used: opened, evaluated, and exchanged with other libraries."""
