"""What is wrong and where: nodes on their own, laws that need no differences, diagnoses."""
