"""TLS at the edge and between the services: certificates, who may call whom, and what a private CA needs."""
