-- A store as version 0001 wrote it. Later versions must read it; never change this file.
BEGIN TRANSACTION;
CREATE TABLE baselines (
	id INTEGER NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	device_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	kernel VARCHAR(100) NOT NULL, 
	problem_key VARCHAR(400) NOT NULL, 
	dims JSON NOT NULL, 
	options JSON NOT NULL, 
	library VARCHAR(100) NOT NULL, 
	samples_us JSON NOT NULL, 
	median_us DOUBLE NOT NULL, 
	spread DOUBLE NOT NULL, 
	cache VARCHAR(16) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_baselines PRIMARY KEY (id), 
	CONSTRAINT uq_baselines_uuid UNIQUE (uuid), 
	CONSTRAINT fk_baselines_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_baselines_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id)
);
INSERT INTO "baselines" VALUES(1,'29e8d1f0-5dab-4cad-85f1-12ab3e63fb69',1,1,'product','{"dims":{"batch":32,"inputs":784,"outputs":128},"options":{"activation":"relu"}}','[["batch",32],["inputs",784],["outputs",128]]','{"activation":"relu"}','cuBLAS','[4.0,3.5]',3.75,6.66666666666666657414e-02,'hot','2026-12-01 15:43:17.064792');
CREATE TABLE contenders (
	id INTEGER NOT NULL, 
	race_id INTEGER NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	us_per_step DOUBLE, 
	samples JSON NOT NULL, 
	spread DOUBLE, 
	start_s DOUBLE, 
	peak_bytes BIGINT, 
	losses JSON NOT NULL, 
	accuracy DOUBLE, 
	error TEXT, 
	CONSTRAINT pk_contenders PRIMARY KEY (id), 
	CONSTRAINT fk_contenders_race_id_races FOREIGN KEY(race_id) REFERENCES races (id)
);
INSERT INTO "contenders" VALUES(1,1,'tuned',20.0,'[20.0]',0.0,1.0,NULL,'[[0,2.25]]',0.9,NULL);
INSERT INTO "contenders" VALUES(2,1,'eager',900.0,'[]',NULL,NULL,NULL,'[]',NULL,NULL);
CREATE TABLE devices (
	id INTEGER NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	"key" VARCHAR(200) NOT NULL, 
	name VARCHAR(160) NOT NULL, 
	arch VARCHAR(16) NOT NULL, 
	sm_count INTEGER NOT NULL, 
	shared_per_block INTEGER NOT NULL, 
	shared_per_sm INTEGER NOT NULL, 
	registers_per_sm INTEGER NOT NULL, 
	threads_per_sm INTEGER NOT NULL, 
	blocks_per_sm INTEGER NOT NULL, 
	l2_bytes BIGINT NOT NULL, 
	memory_bytes BIGINT NOT NULL, 
	memory_bandwidth DOUBLE NOT NULL, 
	l2_bandwidth DOUBLE NOT NULL, 
	tensor_flops DOUBLE NOT NULL, 
	clock_hz DOUBLE NOT NULL, 
	launch_us DOUBLE NOT NULL, 
	CONSTRAINT pk_devices PRIMARY KEY (id), 
	CONSTRAINT uq_devices_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "devices" VALUES(1,'349cef3c3e97706376bda1173ae386cb1eb67e17255931202b99a2dd8c2777e8','Tesla T4/sm_75/40','Tesla T4','sm_75',40,65536,65536,65536,1024,16,4194304,17179869184,320000000000.0,1270000000000.0,65000000000000.0,1590000000.0,1.0);
CREATE TABLE environments (
	id INTEGER NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	host TEXT NOT NULL, 
	system TEXT NOT NULL, 
	python TEXT NOT NULL, 
	driver TEXT NOT NULL, 
	nvrtc TEXT NOT NULL, 
	cupy TEXT NOT NULL, 
	torch TEXT NOT NULL, 
	compiler TEXT NOT NULL, 
	CONSTRAINT pk_environments PRIMARY KEY (id), 
	CONSTRAINT uq_environments_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "environments" VALUES(1,'58cb8ec0eada77e4f9f8063c832b4b9176a1ef34ff5823943f3bd37f990e06ce','bench','Linux','3.11','580.1','13.0','','','g++ 12');
CREATE TABLE mnist_tune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT mnist_tune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "mnist_tune_version" VALUES('0001');
CREATE TABLE observations (
	id INTEGER NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	device_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	kernel VARCHAR(100) NOT NULL, 
	source_hash VARCHAR(64) NOT NULL, 
	space_hash VARCHAR(64) NOT NULL, 
	problem_key VARCHAR(400) NOT NULL, 
	dims JSON NOT NULL, 
	options JSON NOT NULL, 
	config_key TEXT NOT NULL, 
	config JSON NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	message TEXT NOT NULL, 
	samples_us JSON NOT NULL, 
	median_us DOUBLE, 
	spread DOUBLE, 
	error DOUBLE, 
	tolerance DOUBLE, 
	cache VARCHAR(16), 
	seed BIGINT NOT NULL, 
	registers INTEGER, 
	shared_bytes INTEGER, 
	spill_bytes INTEGER, 
	compile_s DOUBLE, 
	verified_by VARCHAR(32) NOT NULL, 
	extra JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_observations PRIMARY KEY (id), 
	CONSTRAINT uq_observations_uuid UNIQUE (uuid), 
	CONSTRAINT fk_observations_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_observations_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id)
);
INSERT INTO "observations" VALUES(1,'14e2c5fa-cf57-4f9e-ba38-3fcc280ff9fc',1,1,'product','bb3633efaf282440','1d88a5cf1916cc1e','{"dims":{"batch":32,"inputs":784,"outputs":128},"options":{"activation":"relu"}}','[["batch",32],["inputs",784],["outputs",128]]','{"activation":"relu"}','{"BLOCK_N":64,"STAGES":2}','{"BLOCK_N":64,"STAGES":2}','ok','measured','','[12.0,12.5,13.0]',12.5,0.04,0.0001,0.001,'hot',7,96,24576,0,1.5,'cuda','{"note":"kept"}','2026-12-01 15:43:17.060244');
INSERT INTO "observations" VALUES(2,'1ed96cf1-e21e-4c61-9014-9afb0798b3ee',1,1,'product','bb3633efaf282440','1d88a5cf1916cc1e','{"dims":{"batch":32,"inputs":784,"outputs":128},"options":{"activation":"relu"}}','[["batch",32],["inputs",784],["outputs",128]]','{"activation":"relu"}','{"BLOCK_N":128,"STAGES":1}','{"BLOCK_N":128,"STAGES":1}','wrong','measured','the error is 0.3, over 0.001','[]',NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,'','{}','2026-12-01 15:43:17.062486');
INSERT INTO "observations" VALUES(3,'f527642a-5e0e-4673-832d-1cd1faaa5707',1,1,'product','bb3633efaf282440','1d88a5cf1916cc1e','{"dims":{"batch":32,"inputs":784,"outputs":10},"options":{"activation":"relu"}}','[["batch",32],["inputs",784],["outputs",10]]','{"activation":"relu"}','{"BLOCK_N":16,"STAGES":1}','{"BLOCK_N":16,"STAGES":1}','ok','predicted','','[3.25]',3.25,1.53846153846153854694e-01,0.0001,0.001,NULL,0,NULL,NULL,NULL,NULL,'cuda','{}','2026-12-01 15:43:17.063686');
CREATE TABLE races (
	id INTEGER NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	device_id INTEGER NOT NULL, 
	environment_id INTEGER NOT NULL, 
	width INTEGER NOT NULL, 
	layers INTEGER NOT NULL, 
	batch INTEGER NOT NULL, 
	steps INTEGER NOT NULL, 
	lr DOUBLE NOT NULL, 
	seed BIGINT NOT NULL, 
	command TEXT NOT NULL, 
	strongest VARCHAR(100) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_races PRIMARY KEY (id), 
	CONSTRAINT uq_races_uuid UNIQUE (uuid), 
	CONSTRAINT fk_races_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_races_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id)
);
INSERT INTO "races" VALUES(1,'1692e7d0-a1c9-4134-a618-359c8f2a50fd',1,1,128,3,32,1000,0.003,1,'mnist-tune train','eager','2026-12-01 15:43:17.066016');
CREATE INDEX ix_devices_key ON devices ("key");
CREATE INDEX ix_observations_device_id ON observations (device_id);
CREATE INDEX ix_observations_kernel_source_hash ON observations (kernel, source_hash);
CREATE INDEX ix_observations_kernel_problem_key ON observations (kernel, problem_key);
CREATE INDEX ix_baselines_device_id ON baselines (device_id);
CREATE INDEX ix_races_device_id ON races (device_id);
CREATE INDEX ix_contenders_race_id ON contenders (race_id);
COMMIT;
