"""What an argument is where it is not given: hftune's choice for what is trained, or MedicalGPT's."""

from hftune.arguments.defaults.own import OWN, Default
from hftune.arguments.defaults.subject import Subject, subject_of

__all__ = ["OWN", "Default", "Subject", "subject_of"]
