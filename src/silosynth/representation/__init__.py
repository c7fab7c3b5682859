"""One latent vector per row, from columns in several silos: `silosynth.represent`, and what it gives."""
