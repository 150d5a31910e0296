"""What an argument is where it is not given: hftune's choice for what is trained, or MedicalGPT's."""
