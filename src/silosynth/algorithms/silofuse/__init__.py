"""SiloFuse (ICDE 2024), its jointly trained baselines E2E and E2EDistr, and joint latents."""
