"""Jobs across organisations: what is asked, what each silo allows, and how a job is carried out to its results."""
