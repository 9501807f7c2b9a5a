"""Measuring servers from outside: each sample starts a server and a load of its own, as processes
on the CPUs that they are told, and sees what both used."""
